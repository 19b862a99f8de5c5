"""What happens now and what happened last, for those who look: calls, their phases, logs, changes of state.

All of it is bounded; it changes nothing.
"""
