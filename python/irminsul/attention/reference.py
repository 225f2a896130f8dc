"""Absorbed MLA attention over a tile table in plain torch: the specification of the kernel.

Runs on any device and in float64; knows nothing of schedules, splits or the CUDA library.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

import torch
from torch import Tensor

from irminsul.attention.tiles import TileTable
from irminsul.errors import InvalidParams

LATENT_DIM = 512
"""Width of ``c_KV``, which is both the first part of the key and the value."""
ROPE_DIM = 64
"""Width of ``k_r``, the part of the key that carries the position."""
HEAD_DIM = LATENT_DIM + ROPE_DIM


def rotate_keys(k_r: Tensor, delta: Tensor, cos_sin: Tensor, interleaved: bool) -> Tensor:
    """Turn each row of ``k_r`` by its ``delta`` positions, in the dtype of ``k_r``.

    Parameters
    ----------
    k_r : Tensor, floating, [n, 64]
        Rotary part of the stored keys.
    delta : Tensor, integer, [n]
        Signed shift in positions, ``abs(delta) < len(cos_sin)``.
    cos_sin : Tensor, float32, [max_pos, 64]
        ``[cos(32) | sin(32)]`` by position, without any mscale.
    interleaved : bool
        Pairs are ``(2i, 2i + 1)`` when true, ``(i, i + 32)`` otherwise.

    Notes
    -----
    ``R(-d)`` is the transpose of ``R(d)``: the table is read at ``abs(delta)`` and the sine takes
    the sign of ``delta``.
    """
    delta = delta.to(k_r.device)
    angles = cos_sin[delta.abs().long()].to(k_r.dtype)
    cos, sin = angles.chunk(2, dim=-1)
    sin = sin * torch.sign(delta).to(k_r.dtype)[:, None]
    pairs = k_r.reshape(-1, *((32, 2) if interleaved else (2, 32)))
    x, y = pairs.unbind(-1 if interleaved else -2)
    turned = torch.stack([x * cos - y * sin, y * cos + x * sin], -1 if interleaved else -2)
    return torch.where((delta == 0)[:, None], k_r, turned.flatten(-2))


ReadRows = Callable[[Tensor], Tensor]
"""Stored rows of a cache, [n, ...] -> their numbers, [n, 576]."""


def gather_keys(
    cache: Tensor,
    table: TileTable,
    row: int,
    cos_sin: Tensor | None,
    interleaved: bool,
    read: ReadRows,
) -> tuple[Tensor, Tensor]:
    """Keys of one row with their rotation applied, and their logical positions.

    Parameters
    ----------
    cache : Tensor, [num_pages, page_size, ...]
    table, row, cos_sin, interleaved
        See `mla_attention_reference`.
    read : callable
        From the row's stored rows to numbers; only rows that the table names are passed.

    Returns
    -------
    keys : Tensor, dtype that `read` gives, [n, 576]
    positions : Tensor, int64, [n]

    Raises
    ------
    InvalidParams
        A tile has a delta but `cos_sin` is missing.
    """
    first = int(table.start[row])
    slots, positions, deltas = [], [], []
    for page, bounds, delta, pos0 in table.tiles[first : first + int(table.count[row])].tolist():
        lo, hi = bounds & 0xFFFF, bounds >> 16
        slots.append(torch.arange(page * cache.shape[1] + lo, page * cache.shape[1] + hi))
        positions.append(torch.arange(pos0, pos0 + hi - lo))
        deltas.append(torch.full((hi - lo,), delta))
    if not slots:
        return read(cache[0, :0]), torch.empty(0, dtype=torch.int64, device=cache.device)
    keys = read(cache.flatten(0, 1)[torch.cat(slots).to(cache.device)])
    delta = torch.cat(deltas)
    if bool(delta.any()):
        if cos_sin is None:
            raise InvalidParams("tiles with a delta other than 0 need the model's cos_sin table")
        rotated = rotate_keys(keys[:, LATENT_DIM:], delta, cos_sin, interleaved)
        keys = torch.cat([keys[:, :LATENT_DIM], rotated], dim=1)
    return keys, torch.cat(positions).to(cache.device)


def mla_attention_reference(
    q: Tensor,
    cache: Tensor,
    table: TileTable,
    q_indptr: Tensor,
    q_pos: Tensor,
    *,
    scale: float,
    cos_sin: Tensor | None = None,
    interleaved: bool = True,
    compute_dtype: torch.dtype = torch.float32,
) -> tuple[Tensor, Tensor]:
    """Attend every query token to the keys of its row at or before its own position.

    Parameters
    ----------
    q : Tensor, floating, [total_q, num_heads, 576]
        Absorbed queries: 512 latent columns, then 64 already rotated to the query's position.
    cache : Tensor, floating, [num_pages, 64, 576]
        Latent rows ``[c_KV | k_r]``.
    table : TileTable
        Keys of each row.
    q_indptr : Tensor, integer, [num_rows + 1]
        Row ``r`` owns query tokens ``q_indptr[r]`` to ``q_indptr[r + 1]``.
    q_pos : Tensor, integer, [num_rows]
        Position of each row's first query token; the others follow it.
    scale : float
        Factor on the scores before the softmax.
    cos_sin : Tensor, float32, [max_pos, 64], optional
        Needed when any tile has a delta other than 0.
    interleaved : bool
        Pairing of the rotary columns, see `rotate_keys`.
    compute_dtype : torch.dtype
        Everything is computed in this dtype; float64 gives the yardstick for kernels.

    Returns
    -------
    out : Tensor, dtype of `q`, [total_q, num_heads, 512]
        Zeros where a query has no key.
    lse : Tensor, float32 (float64 when computed so), [total_q, num_heads]
        Natural logarithm of the sum of exponentials; -inf where a query has no key.

    Raises
    ------
    InvalidParams
        A tile has a delta but `cos_sin` is missing.

    Notes
    -----
    ``out = softmax_j(scale * q . [c_j | R(delta_j) k_r_j]) c_j``.
    """

    def keys_of(row: int) -> tuple[Tensor, Tensor]:
        return gather_keys(
            cache, table, row, cos_sin, interleaved, lambda rows: rows.to(compute_dtype)
        )

    return attend_rows(q, q_indptr, q_pos, keys_of, scale, compute_dtype)


def attend_rows(
    q: Tensor,
    q_indptr: Tensor,
    q_pos: Tensor,
    keys_of: Callable[[int], tuple[Tensor, Tensor]],
    scale: float,
    compute_dtype: torch.dtype,
) -> tuple[Tensor, Tensor]:
    """Attend row by row; `keys_of` gives a row's keys and their positions, see `gather_keys`."""
    heads = q.shape[1]
    out_dtype = torch.float64 if compute_dtype == torch.float64 else torch.float32
    out = q.new_zeros(q.shape[0], heads, LATENT_DIM)
    lse = torch.full(q.shape[:2], -torch.inf, dtype=out_dtype, device=q.device)
    if compute_dtype == torch.float64:
        out = out.double()
    bounds = q_indptr.tolist()
    for row, (first, last) in enumerate(itertools.pairwise(bounds)):
        if first == last:
            continue
        keys, positions = keys_of(row)  # [n, 576], [n]
        if not len(keys):
            continue
        query_pos = int(q_pos[row]) + torch.arange(last - first, device=q.device)
        out[first:last], lse[first:last] = _attend(
            q[first:last].to(compute_dtype), keys, positions, query_pos, scale, lse.dtype
        )
    return out, lse


def _attend(
    q: Tensor,
    keys: Tensor,
    positions: Tensor,
    query_pos: Tensor,
    scale: float,
    lse_dtype: torch.dtype,
) -> tuple[Tensor, Tensor]:
    """One row: q [t, h, 576], keys [n, 576] -> out [t, h, 512], lse [t, h]."""
    scores = torch.einsum("thd,nd->thn", q, keys) * scale
    hidden = positions[None, :] > query_pos[:, None]
    scores = scores.masked_fill(hidden[:, None, :], -torch.inf)
    lse = torch.logsumexp(scores, dim=-1)
    weights = torch.exp(scores - torch.where(lse == -torch.inf, 0, lse)[..., None])
    return weights @ keys[:, :LATENT_DIM], lse.to(lse_dtype)
