"""Token counts -> floating point operations and seconds of prefill for a named model.

Must not know caches. The numbers are estimates for comparing two caches, not predictions.
"""

from __future__ import annotations

from dataclasses import dataclass

from irminsul.errors import InvalidParams

__all__ = ["MODELS", "Model", "model_named", "prefill_flops"]


@dataclass(frozen=True, slots=True)
class Model:
    """What prefill cost depends on.

    Attributes
    ----------
    active_parameters : float
        Parameters that each token passes through.
    layers, heads : int
    head_dim : int
        Sum of the query/key and value dimensions of one head, 192 + 128 in DeepSeek's MLA.
    """

    active_parameters: float
    layers: int
    heads: int
    head_dim: int = 320


# Numbers of the published configurations.
MODELS = {
    "deepseek-v2-lite": Model(2.4e9, 27, 16),
    "deepseek-v2": Model(21e9, 60, 128),
    "deepseek-v3": Model(37e9, 61, 128),
    "kimi-k2": Model(32e9, 61, 64),
    "moonlight": Model(2.24e9, 27, 16),
}


def model_named(name: str) -> Model:
    """Return a model of `MODELS`.

    Raises
    ------
    InvalidParams
        There is no such model.
    """
    try:
        return MODELS[name]
    except KeyError:
        raise InvalidParams(f"model {name!r} is not one of {', '.join(MODELS)}") from None


def prefill_flops(model: Model, computed: int, attention: int) -> float:
    """Estimate the work of a prefill.

    Parameters
    ----------
    model : Model
    computed : int
        Tokens that pass through the model.
    attention : int
        Sum over those tokens of the tokens they attend to.

    Returns
    -------
    float
        Two operations per parameter and token, and two per dimension, head, layer and pair of
        tokens that attend.

    Examples
    --------
    >>> prefill_flops(MODELS["deepseek-v3"], computed=1000, attention=0)
    74000000000000.0
    """
    linear = 2 * model.active_parameters * computed
    return float(linear + 2 * model.layers * model.heads * model.head_dim * attention)
