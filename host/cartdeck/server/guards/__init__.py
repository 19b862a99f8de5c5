"""What a guard is asked, how its verdict is read, and what is done then.

It does not know which endpoint is asked.
"""
