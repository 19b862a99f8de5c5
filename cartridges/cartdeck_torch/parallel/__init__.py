"""Owns one language model over several processes: this one is the leader, rank 0, and starts and watches the others.

It does not know torch: what computes is in `engine`. `python -P -m cartdeck_torch.parallel` is one of the others.
"""
