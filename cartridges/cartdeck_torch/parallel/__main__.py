"""`python -P -m cartdeck_torch.parallel`: one rank; the leader starts it and talks to it on its stdin and stdout."""

from cartdeck_sdk.guard import claim_pipes, die_with_parent

die_with_parent()
pipes = claim_pipes()  # before anything that may print is imported

from cartdeck_torch.parallel.rank import serve  # noqa: E402 - see above

serve(pipes)
