"""A byte-level BPE of GPT-2's kind, small enough to train in a test."""

import json
import pathlib

import tokenizers

TEXT = """It's the 1st time we've seen "them" — 12,345 of 'em!  Don't\tworry:\n\n  they'll be fine.
Zürich, naïve café, 東京 and 🙂🙂; trailing   spaces   \n\n\nend\u00a0of\u2003it.\x1c\x85\n"""


def train(folder: pathlib.Path) -> tokenizers.Tokenizer:
    """Writes folder/tokenizer.json, vocab.json and merges.txt; returns the library's tokenizer."""
    library = tokenizers.Tokenizer(tokenizers.models.BPE())
    library.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=320,
        special_tokens=["<|endoftext|>"],
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    library.train_from_iterator([TEXT] * 3, trainer)
    folder.mkdir(parents=True, exist_ok=True)
    library.save(str(folder / "tokenizer.json"))
    library.model.save(str(folder))
    return library


def vocabulary(folder: pathlib.Path) -> dict[str, int]:
    return json.loads((folder / "vocab.json").read_text(encoding="utf-8"))
