"""Error causes -> the exception classes that every part of irminsul raises.

Knows no token, no engine and no device: classes only. The Rust core raises these very classes.
"""

__all__ = [
    "CudaError",
    "DeltaOutOfRange",
    "DuplicateNode",
    "EngineFailed",
    "HostMismatch",
    "InternalError",
    "InvalidParams",
    "InvalidSlots",
    "InvalidTensor",
    "InvalidTokens",
    "InvalidTrace",
    "IrminsulError",
    "MissingExtra",
    "NativeUnavailable",
    "OverlappingSlots",
    "QuotaExceeded",
    "RegistryFull",
    "ServerFailed",
    "UnknownNode",
    "Unsupported",
]


class IrminsulError(Exception):
    """Root of every error that irminsul raises on purpose."""


class InvalidTokens(IrminsulError, ValueError):
    """The token ids cannot be used: wrong type, wrong dimensions, or an id outside [0, 2**32)."""


class InvalidParams(IrminsulError, ValueError):
    """A parameter lies outside its allowed range; the message names it, its value and the range."""


class DeltaOutOfRange(InvalidParams):
    """A row would have to move further than the model's table of positions reaches."""


class InvalidTensor(IrminsulError, ValueError):
    """A tensor has the wrong shape, dtype, stride or device; the message says which."""


class InvalidSlots(IrminsulError, ValueError):
    """A slot number lies outside the KV buffers."""


class OverlappingSlots(InvalidSlots):
    """A slot would be read and written, or written twice, in one call."""


class InvalidTrace(IrminsulError, ValueError):
    """A recorded request does not follow the trace schema."""


class UnknownNode(IrminsulError, KeyError):
    """The registry holds no live node under this id (never added, removed or evicted)."""

    def __str__(self) -> str:
        # KeyError would print the repr of the message, quotes included.
        return Exception.__str__(self)


class DuplicateNode(IrminsulError, ValueError):
    """The registry already holds a live node under this id."""


class RegistryFull(IrminsulError, RuntimeError):
    """The tokens do not fit, and nothing that may be evicted is left."""


class QuotaExceeded(RegistryFull):
    """A tenant has reached one of its own limits; other tenants are not affected."""


class NativeUnavailable(IrminsulError, ImportError):
    """A native part (CUDA library, extension module) is missing or does not load here."""


class MissingExtra(IrminsulError, ImportError):
    """An optional dependency is not installed; the message names the extra to install."""


class CudaError(IrminsulError, RuntimeError):
    """A CUDA call failed; the message carries the library's own text."""


class HostMismatch(IrminsulError, RuntimeError):
    """The serving engine is not one that this version of irminsul can work with."""


class InternalError(IrminsulError, RuntimeError):
    """A bug in the Rust core ended one call; the object it was made on is best given up.

    It is an `Exception`, so that a host which survives a plugin's errors survives this one too.
    """


class EngineFailed(IrminsulError, RuntimeError):
    """A serving engine that irminsul started has failed; the message carries the end of its log."""


class ServerFailed(IrminsulError, RuntimeError):
    """A serving engine that irminsul talks to did not answer, or answered with an error."""


class Unsupported(IrminsulError, RuntimeError):
    """The model, feature or layout is refused because the result could be wrong."""
