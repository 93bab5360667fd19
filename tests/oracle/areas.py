"""Which family of operators a database entry belongs to, for the inventory and the coverage page."""

from __future__ import annotations

import fnmatch

# First match wins, so the narrow rows come before the wide ones.
_AREAS: tuple[tuple[str, str], ...] = (
    ("fft", "fft.* stft istft"),
    ("masked", "masked.*"),
    ("signal windows", "signal.*"),
    ("sparse, jagged, quantised", "sparse.* to_sparse torch._scaled_mm*"),
    (
        "PyTorch internals",
        "jiterator_* torch.ops.* torch._* _softmax_backward_data _native_batch_norm_legit "
        "_batch_norm_with_update _upsample_bilinear2d_aa _unsafe_masked_index* _segment_reduce _chunk_cat "
        "max_pool2d_with_indices_backward native_dropout_backward hash_tensor bmm.triton_optimized",
    ),
    (
        "complex numbers",
        "complex polar view_as_real view_as_complex imag real conj conj_physical resolve_conj resolve_neg "
        "angle cdouble cfloat chalf isreal nn.functional.silu.complex H mH",
    ),
    (
        "random",
        "cauchy exponential geometric log_normal normal normal.* uniform randn* rand_like randint* "
        "multinomial bernoulli nn.functional.*dropout* nn.functional.rrelu "
        "nn.functional.fractional_max_pool* svd_lowrank pca_lowrank",
    ),
    ("linear algebra", "linalg.*"),
    ("special functions", "special.*"),
    (
        "nn.functional: losses",
        "nn.functional.*_loss nn.functional.*cross_entropy* nn.functional.kl_div nn.functional.*_loss.*",
    ),
    (
        "nn.functional: convolution, pooling, resampling",
        "nn.functional.conv* nn.functional.*pool* nn.functional.*unpool* nn.functional.interpolate "
        "nn.functional.upsample* nn.functional.grid_sample grid_sampler_* nn.functional.pixel_* "
        "nn.functional.channel_shuffle nn.functional.unfold nn.functional.pad* constant_pad_nd",
    ),
    (
        "nn.functional: normalisation",
        "nn.functional.*_norm nn.functional.*_response_norm native_* nn.functional.normalize",
    ),
    (
        "nn.functional: linear, embedding, attention, distance",
        "nn.functional.linear nn.functional.bilinear nn.functional.embedding* nn.functional.one_hot "
        "nn.functional.multi_head* nn.functional.scaled_dot* nn.functional.cosine_similarity "
        "nn.functional.p*distance nn.functional.pdist cdist dist",
    ),
    ("nn.functional: activations", "nn.functional.* softmax log_softmax sigmoid"),
    (
        "creation",
        "arange linspace logspace eye empty* zeros* ones* full* new_* scalar_tensor tri?_indices meshgrid "
        "fill zero_ to clone item",
    ),
    ("dtype conversion", "bfloat16 bool byte char double float half int long short"),
    (
        "linear algebra",
        "addbmm baddbmm addmm addmv addr dot vdot bmm mv mm matmul __rmatmul__ outer inner tensordot einsum "
        "kron trace cholesky* logdet lu lu_* qr geqrf ormqr svd pinverse matrix_exp triangular_solve "
        "block_diag cross norm renorm cov corrcoef",
    ),
    (
        "reductions and scans",
        "sum mean prod var std var_mean std_mean amax amin max.reduction_* min.reduction_* argmax argmin "
        "all any count_nonzero nanmean nansum logsumexp cumsum cumprod cummax cummin logcumsumexp aminmax "
        "trapz trapezoid cumulative_trapezoid diff gradient sum_to_size",
    ),
    (
        "sorting, order statistics, histograms",
        "sort argsort msort topk kthvalue median nanmedian mode quantile nanquantile unique "
        "unique_consecutive histogram histogramdd histc bincount bucketize searchsorted isin",
    ),
    (
        "indexing",
        "__getitem__ gather scatter scatter_* index_* put take take_along_dim masked_* nonzero "
        "nonzero_static argwhere select select_scatter slice slice_scatter diagonal_scatter "
        "as_strided_scatter where unravel_index tril triu narrow narrow_copy",
    ),
    (
        "shape, views, joining",
        "reshape reshape_as view view_* ravel flatten unflatten permute* transpose* t t_copy T mT movedim "
        "squeeze* unsqueeze* expand* broadcast_* chunk unsafe_chunk split* unsafe_split unbind* "
        "tensor_split ?split stack cat ?stack column_stack flip fliplr flipud roll rot90 repeat "
        "repeat_interleave tile unfold* diag diag_embed diagonal diagonal_copy diagflat as_strided "
        "as_strided_copy alias_copy atleast_?d contiguous resize_* combinations cartesian_prod",
    ),
)

_BY_CLASS = {
    "UnaryUfuncInfo": "elementwise, one input",
    "BinaryUfuncInfo": "elementwise, two inputs",
    "ReductionOpInfo": "reductions and scans",
}

_ELEMENTWISE = "elementwise, other"


def area(name: str, variant: str, kind: str) -> str:
    """The area of an entry from its name, its variant and the class of its record (`kind`)."""
    full = f"{name}.{variant}" if variant else name
    for title, patterns in _AREAS:
        for pattern in patterns.split():
            if fnmatch.fnmatchcase(name, pattern) or fnmatch.fnmatchcase(full, pattern):
                return title
    return _BY_CLASS.get(kind, _ELEMENTWISE)
