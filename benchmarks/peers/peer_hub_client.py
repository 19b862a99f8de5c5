"""huggingface_hub's own client: one file, or a repository, timed inside the process. argv: REPOSITORY [FILE]."""

import json
import os
import sys
import time

from huggingface_hub import hf_hub_download, snapshot_download

hf_hub_download("bench/small", "part-000.json")  # it has imported what it needs
begun = time.perf_counter()
if len(sys.argv) > 2:
    hf_hub_download(sys.argv[1], sys.argv[2])
else:
    snapshot_download(sys.argv[1])
taken_s = time.perf_counter() - begun
print(json.dumps({"taken_s": taken_s, "cache": os.environ["HF_HUB_CACHE"]}))
