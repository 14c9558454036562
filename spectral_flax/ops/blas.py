"""Keeps XLA's batched LAPACK calls from fighting OpenBLAS for the same cores.

XLA parallelises eig, QR and solves over the batch by itself and borrows SciPy's OpenBLAS for each
matrix. When OpenBLAS starts threads of its own as well, QR runs 4x and eig up to 10x slower.
"""

import os

import scipy.linalg  # noqa: F401  (loads the OpenBLAS that jaxlib borrows)
import threadpoolctl

_USER_LIMITS = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "GOTO_NUM_THREADS")


def cap_lapack_threads() -> bool:
    """Sets SciPy's OpenBLAS to one thread; returns whether it did.

    NumPy's own OpenBLAS is another library and keeps its threads. A limit that the user set in
    the environment wins.
    """
    if any(name in os.environ for name in _USER_LIMITS):
        return False
    controller = threadpoolctl.ThreadpoolController()
    scipys = [
        lib
        for lib in controller.lib_controllers
        if lib.user_api == "blas" and "scipy" in os.path.dirname(lib.filepath).lower()
    ]
    for lib in scipys:
        lib.set_num_threads(1)
    return bool(scipys)
