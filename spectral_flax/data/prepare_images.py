"""Prepares an image set ahead of training.

    python -m spectral_flax.data.prepare_images cifar100
    python -m spectral_flax.data.prepare_images cifar100 --archive cifar-100-binary.tar.gz

Downloads the published archive (170 MB) unless --data_dir or --archive has it, and writes the set
in TFDS's layout (about 150 MB). A set that is there already is left alone. Needs no TensorFlow.
"""

from spectral_flax.command import Parser
from spectral_flax.data.cifar_archive import FORMATS
from spectral_flax.errors import UserError


def main(argv: list[str] | None = None) -> None:
    """Prepares the set that the arguments name and prints its directory."""
    parser = Parser(prog="python -m spectral_flax.data.prepare_images", description=__doc__)
    parser.add_argument("name", choices=sorted(FORMATS), help="the image set")
    parser.add_argument("--data_dir", default="", help="default: TFDS's, ~/tensorflow_datasets")
    parser.add_argument("--archive", default="", help="the published .tar.gz, if you have it")
    flags = parser.parse_args(argv)

    from spectral_flax.data.cifar import prepare_cifar  # TFDS is slow to import; --help is not

    try:
        print(prepare_cifar(flags.name, flags.data_dir, flags.archive))
    except UserError as error:
        raise SystemExit(f"error: {error}") from None


if __name__ == "__main__":
    main()
