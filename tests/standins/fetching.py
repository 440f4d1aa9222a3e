"""Fetches all but the end of every file of a model, in small pieces: `python -m` this, NAME."""

import sys

from layerswap_method.errors import LayerSwapError
from layerswap_method.hub import transfer
from layerswap_method.hub.downloads import Downloads

REQUEST, LISTED, LEFT = 1 << 18, 1 << 16, 1_500_000
"""Bytes of a request, bytes between two lines of a list, and those at the end of each file that are
left: a file that is read whole would be the library's."""


def main(name):
    transfer._REQUEST, transfer._LISTED, transfer._WAIT_S = REQUEST, LISTED, 0.02
    models = Downloads("ranges")
    files = [file.resolve() for file in models.folder(name, None).glob("*.safetensors")]
    models.fetch({file: [(0, file.stat().st_size - LEFT)] for file in files})


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except LayerSwapError as error:
        sys.exit(error.message)
