"""Eigenvalues against NumPy in double precision, closed forms and finite differences."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from spectral_flax.ops import count_failed, eig, eigvals
from spectral_flax.ops import eigen as eigen_module

jit_eigvals = jax.jit(eigvals, static_argnames="structure")


def sorted_reference(m):
    values = np.linalg.eigvals(np.asarray(m, np.float64))
    return values[np.lexsort((-values.imag, -values.real))]


def random(shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


@pytest.mark.parametrize("shape", [(7, 7), (2, 3, 6, 6), (1, 1), (0, 4, 4)])
def test_values_agree_with_numpy_in_numpys_sorted_order(shape):
    m = random(shape)
    got = np.asarray(jit_eigvals(m))
    assert got.shape == shape[:-1] and got.dtype == np.complex64
    want = [sorted_reference(one) for one in m.reshape(-1, *shape[-2:])]
    np.testing.assert_allclose(got.reshape(-1, shape[-1]), np.reshape(want, (-1, shape[-1])), 2e-5)


def test_order_is_descending_real_then_descending_imaginary():
    rotation = np.array([[0.0, -1.0], [1.0, 0.0]], np.float32)
    m = np.zeros((6, 6), np.float32)
    m[:2, :2], m[2:4, 2:4], m[4, 4], m[5, 5] = 3 * rotation, 2 * rotation, 1.0, -1.0
    got = np.asarray(eigvals(m, structure="general"))
    np.testing.assert_allclose(got, [1, 3j, 2j, -2j, -3j, -1], atol=1e-6)


def test_vectors_are_columns_of_unit_length_that_belong_to_their_values():
    m = random((4, 9, 9), seed=1)
    values, vectors = map(np.asarray, jax.jit(eig)(m))
    np.testing.assert_allclose(m @ vectors, vectors * values[:, None, :], atol=2e-5)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=-2), 1, rtol=1e-5)
    np.testing.assert_array_equal(values, np.asarray(jit_eigvals(m)))


def test_defective_matrix_has_fewer_independent_vectors_and_no_false_residual():
    m = np.array([[1.0, 1, 1], [0, 1, 0], [0, 0, 1]], np.float32)  # numpy issue 20322
    values, vectors = map(np.asarray, eig(m))
    assert np.abs(m @ vectors - vectors * values).max() < 1e-6
    assert np.linalg.matrix_rank(vectors, tol=1e-3) < 3


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_sixteen_bit_input_is_computed_in_float32(dtype):
    m = jnp.asarray(random((4, 4)), dtype)
    assert eigvals(m).dtype == jnp.complex64
    np.testing.assert_array_equal(eigvals(m), eigvals(m.astype(jnp.float32)))
    assert eig(m)[1].dtype == jnp.complex64


def test_double_precision_stays_double(x64):
    m = np.random.default_rng(0).normal(size=(12, 12))
    np.testing.assert_allclose(jit_eigvals(m), sorted_reference(m), rtol=1e-12)


@pytest.mark.parametrize("structure", ["general", "symmetric", "lower"])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_matrix_that_is_not_finite_is_nan_alone_and_counted(structure, bad):
    m = np.broadcast_to(np.diag(np.float32([3, 2, 1])), (3, 3, 3)).copy()
    m[1, 0, 2] = bad  # a corner that neither eigh nor a diagonal would have read
    got = np.asarray(jit_eigvals(m, structure=structure))
    assert np.isnan(got[1]).all() and count_failed(got) == 1
    np.testing.assert_allclose(got[[0, 2]], [[3, 2, 1]] * 2, rtol=1e-6)


def test_symmetric_input_gives_exactly_real_values_and_eigh_is_what_runs():
    m = random((2, 8, 8))
    m = m + m.swapaxes(-1, -2)
    got = np.asarray(eigvals(m))
    assert (got.imag == 0).all()
    np.testing.assert_allclose(got.real, np.linalg.eigvalsh(np.float64(m))[:, ::-1], atol=1e-5)
    lowered = jit_eigvals.lower(m, structure="symmetric").as_text()
    assert "syevd" in lowered and "geev" not in lowered
    vectors = np.asarray(jax.jit(lambda m: eig(m, structure="symmetric"))(m)[1])
    gram = vectors.conj().swapaxes(-1, -2) @ vectors
    np.testing.assert_allclose(gram, np.broadcast_to(np.eye(8), (2, 8, 8)), atol=1e-5)


def test_causal_input_gives_its_diagonal_without_a_decomposition():
    m = np.tril(random((3, 40, 40)))
    want = -np.sort(-np.diagonal(m, axis1=-2, axis2=-1), axis=-1)
    np.testing.assert_array_equal(eigvals(m), want.astype(np.complex64))
    lowered = jit_eigvals.lower(m, structure="lower").as_text()
    assert "lapack" not in lowered
    np.testing.assert_array_equal(jit_eigvals(m, structure="lower"), eigvals(m))


def test_auto_uses_a_structure_only_when_the_whole_batch_has_it():
    m = random((2, 5, 5))
    m[0] = np.tril(m[0])
    np.testing.assert_allclose(eigvals(m)[1], sorted_reference(m[1]), rtol=1e-4)


def test_vmap_and_batch_dimensions_agree():
    m = random((2, 3, 5, 5))
    np.testing.assert_allclose(jax.vmap(jax.vmap(eigvals))(m), eigvals(m), rtol=1e-5)


def test_derivative_of_the_spectral_abscissa_against_finite_differences(x64):
    m = np.random.default_rng(3).normal(size=(6, 6))

    def top(m):
        return jnp.abs(1.0 + eigvals(m)).max()

    gradient, step = np.asarray(jax.grad(top)(m)), 1e-6
    for i, j in [(0, 0), (2, 5), (4, 1)]:
        bump = np.zeros_like(m)
        bump[i, j] = step
        numeric = (top(m + bump) - top(m - bump)) / (2 * step)
        np.testing.assert_allclose(gradient[i, j], numeric, rtol=1e-6, atol=1e-9)


def test_eigenvector_derivatives_are_refused_with_the_way_out():
    with pytest.raises(NotImplementedError, match="differentiate spectral_flax.ops.eigvals"):
        jax.grad(lambda m: eig(m)[0].real.max())(jnp.eye(3))


# The TPU has no solver: there the host does it. The host functions are run here on the CPU, and
# that a TPU program takes them is seen in the branches that platform_dependent recorded.


def test_host_path_gives_the_native_result_in_jit_and_under_vmap():
    m = random((3, 6, 6), seed=6)
    host = jax.jit(eigen_module._host_eigvals)(m)
    order = eigen_module._order(host)
    np.testing.assert_allclose(np.take_along_axis(host, order, -1), eigvals(m), rtol=2e-5)
    np.testing.assert_array_equal(jax.vmap(eigen_module._host_eigvals)(m), host)
    values, vectors = map(np.asarray, jax.jit(eigen_module._host_eig)(m))
    np.testing.assert_allclose(m @ vectors, vectors * values[:, None, :], atol=2e-5)


def test_host_path_fails_one_matrix_at_a_time():
    m = random((3, 4, 4))
    m[1, 0, 0] = np.nan
    values = np.asarray(eigen_module._host_eigvals(m))
    assert np.isnan(values[1]).all() and not np.isnan(values[[0, 2]]).any()


def test_a_tpu_program_takes_the_host_path():
    traced = jax.jit(eigvals).trace(random((4, 4)))
    # Lowering a callback needs the real client, so without a TPU it gets exactly this far.
    with pytest.raises(ValueError, match="backend cpu is different from the lowering platform tpu"):
        traced.lower(lowering_platforms=("tpu",))
    assert "eig" in traced.lower(lowering_platforms=("cuda",)).as_text()


@pytest.mark.parametrize(
    ("m", "error", "words"),
    [
        (np.ones((3, 4), np.float32), ValueError, r"square .* \(3, 4\)"),
        (np.ones(3, np.float32), ValueError, r"square .* \(3,\)"),
        (np.ones((3, 3), np.int32), TypeError, "float or complex array, got int32"),
    ],
)
def test_bad_input_is_one_clear_line(m, error, words):
    for function in (eigvals, eig):
        with pytest.raises(error, match=words):
            function(m)


def test_unknown_structure_lists_the_known_ones():
    with pytest.raises(ValueError, match="'upper' is not known.*general"):
        eigvals(np.eye(2, dtype=np.float32), structure="upper")
