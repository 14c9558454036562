"""Language models: perplexity on any prepared text."""

import pathlib

from ml_collections import ConfigDict

from spectral_flax.data.tokens import TokenSet, load_bin, load_tokens
from spectral_flax.errors import UserError
from spectral_flax.evaluation.accuracy import evaluator
from spectral_flax.evaluation.language_run import LanguageRun, load_language_run
from spectral_flax.evaluation.options import Options
from spectral_flax.evaluation.results import results_directory
from spectral_flax.tasks.language_model import covering_source, predict
from spectral_flax.training import distributed
from spectral_flax.training.files import write_json


def evaluate_text(config: ConfigDict, options: Options) -> int:
    """Prints loss and perplexity of every token of a text, and writes them as JSON.

    options.text: prepared by `spectral_flax.data.prepare` with the run's tokenizer; "" for the
    run's own data. Raises UserError for a text of another vocabulary, and for flags of images.
    """
    if options.corruptions or options.max_images:
        flag = "--corruptions" if options.corruptions else "--max_images"
        raise UserError(f"{flag} are of images, and this run is a language model's")
    workdir, directory, split = options.workdir, options.text, options.split
    run = load_language_run(workdir)
    if directory:
        tokens = load_bin(directory, name=pathlib.Path(directory).name)
    else:
        data = config.data
        tokens = load_tokens(data.name, path=data.path, data_dir=config.data_dir)
    # Also the run's own: its directory may have been prepared again since.
    _check_vocabulary(run, tokens, directory or config.data.path or config.data.name)
    task = predict(tokens, config)
    text = tokens.train if split == "train" else tokens.val
    folder = results_directory(options.out, workdir)
    distributed.stop_at_once()
    source = covering_source(text, config.data)
    evaluate = evaluator(task, config.training.eval_batch_size)
    values = evaluate(run.params, source)
    name = directory or task.labels["dataset"]
    print(
        f"checkpoint: step {run.step}\n{name} ({split}, {len(text) - 1} tokens scored): "
        f"loss {values['loss']:.4f}, perplexity {values['perplexity']:.3f}"
    )
    path = folder / f"text-{pathlib.Path(name).name}-{split}.json"
    facts = {"checkpoint_step": run.step, "text": name, "split": split, "tokens": len(text) - 1}
    write_json(path, facts | values)
    print(f"results: {path}")
    return 0


def _check_vocabulary(run: LanguageRun, tokens: TokenSet, directory: str) -> None:
    """Token numbers only mean the same under the same tokenizer."""
    same = tokens.vocab_size == run.vocab_size
    if same and tokens.tokenizer is not None and run.tokenizer is not None:
        same = tokens.tokenizer.to_json() == run.tokenizer.to_json()
    if not same:
        raise UserError(
            f"the text in {directory} was prepared with another vocabulary ({tokens.vocab_size} "
            f"symbols) than the run's ({run.vocab_size}); prepare it again with the run's tokenizer"
        )
