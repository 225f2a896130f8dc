"""An environment variable -> an SGLang engine that runs an MLA model on a plain CPU.

Must not know irminsul: it only fills the gaps SGLang has without a GPU, for the demo and tests.

SGLang's CPU build needs AMX kernels that the package index does not carry. Its generic device path
runs everywhere, but misses two things: a rotary kernel it imports from vllm and never calls, and
an attention handler that keeps an MLA model in its absorbed form under ``torch_native``.
``register`` is an ``sglang.srt.plugins`` entry point, so every spawned scheduler process gets it;
it does nothing unless ``IRMINSUL_CPU_HOST=1``.
"""

from __future__ import annotations

import functools
import importlib.machinery
import importlib.util
import os
import sys
import types
from pathlib import Path
from typing import Any

ENABLE = "IRMINSUL_CPU_HOST"


def register() -> None:
    """Apply the CPU patches in this process when ``IRMINSUL_CPU_HOST=1``; repeatable."""
    if os.environ.get(ENABLE) != "1":
        return
    _provide_rotary_import()
    _keep_mla_absorbed()
    _keep_nccl_out()
    _pin_nothing()
    _attend_in_parallel()


def environment(page_size: int = 1, ranks: int = 1) -> dict[str, str]:
    """Return the environment variables an engine process needs on the CPU.

    Parameters
    ----------
    page_size
        Tokens per page of the KV pool. Above 1, older engines allocate pages by a Triton kernel,
        which has no CPU driver and runs in Triton's interpreter instead.
    ranks
        Scheduler processes of one engine. SGLang wants each to name its cores where there are
        fewer memory nodes than ranks; they share all cores here.
    """
    variables = {
        ENABLE: "1",
        # Off-GPU the engine would round its cos/sin table to bf16.
        "SGLANG_ROPE_CACHE_FP32": "1",
    }
    if page_size > 1:
        variables["TRITON_INTERPRET"] = "1"
    if ranks > 1:
        cores = ",".join(map(str, sorted(os.sched_getaffinity(0))))
        variables["SGLANG_CPU_OMP_THREADS_BIND"] = "|".join([cores] * ranks)
    return variables


def engine_arguments(model: str | Path, **overrides: Any) -> dict[str, Any]:
    """Return keyword arguments for ``sglang.Engine`` that serve `model` on the CPU.

    Parameters
    ----------
    model
        Folder that holds ``config.json`` and the weights.
    **overrides
        Engine arguments that replace or extend the defaults.
    """
    defaults: dict[str, Any] = {
        "model_path": str(model),
        "device": "cpu",
        "dtype": "bfloat16",
        "attention_backend": "torch_native",
        "sampling_backend": "pytorch",
        "grammar_backend": "none",
        "disable_cuda_graph": True,
        "skip_tokenizer_init": True,
        "max_total_tokens": 8192,
        # Fixed: the default is derived from GPU sizes and can come out negative here.
        "mem_fraction_static": 0.5,
        "log_level": "warning",
    }
    return {**defaults, **overrides}


def _provide_rotary_import() -> None:
    if "vllm" in sys.modules or importlib.util.find_spec("vllm") is not None:
        return
    package = types.ModuleType("vllm")
    package.__path__ = []
    package.__spec__ = importlib.machinery.ModuleSpec("vllm", None, is_package=True)
    kernels = types.ModuleType("vllm._custom_ops")
    kernels.__spec__ = importlib.machinery.ModuleSpec("vllm._custom_ops", None)
    kernels.rotary_embedding = _no_rotary_kernel  # type: ignore[attr-defined]
    package._custom_ops = kernels  # type: ignore[attr-defined]
    sys.modules["vllm"] = package
    sys.modules["vllm._custom_ops"] = kernels


def _keep_nccl_out() -> None:
    # Several ranks ask for NCCL and for GPU all-reduce kernels whatever the device is; without
    # them the groups use gloo.
    from sglang.srt.distributed.parallel_state import GroupCoordinator

    original = GroupCoordinator.__init__
    if hasattr(original, "irminsul_original"):
        return

    @functools.wraps(original)
    def initialise(self: Any, *args: Any, **kwargs: Any) -> None:
        kwargs.update(use_pynccl=False, use_custom_allreduce=False)
        original(self, *args, **kwargs)

    initialise.irminsul_original = original  # type: ignore[attr-defined]
    GroupCoordinator.__init__ = initialise
    # Their public forms are registered for GPUs only.
    GroupCoordinator.all_gather_into_tensor = GroupCoordinator._all_gather_into_tensor
    GroupCoordinator.reduce_scatter_tensor = GroupCoordinator._reduce_scatter_tensor


def _pin_nothing() -> None:
    # Parts of SGLang pin host memory whatever the device is, which needs a GPU's driver.
    import torch

    if torch.cuda.is_available() or hasattr(torch.zeros, "irminsul_original"):
        return

    def unpinned(original: Any) -> Any:
        @functools.wraps(original)
        def make(*args: Any, **kwargs: Any) -> Any:
            kwargs.pop("pin_memory", None)
            return original(*args, **kwargs)

        make.irminsul_original = original  # type: ignore[attr-defined]
        return make

    for name in ("empty", "zeros", "ones", "full", "tensor", "arange"):
        setattr(torch, name, unpinned(getattr(torch, name)))
    torch.Tensor.pin_memory = lambda tensor, *_: tensor  # type: ignore[method-assign]


def _attend_in_parallel() -> None:
    # Attention data parallelism pads batches by a number that torch_native was never asked for,
    # and gathers tokens by a Triton kernel unless this is SGLang's CPU build.
    from sglang.srt.layers import dp_attention
    from sglang.srt.layers.attention.torch_native_backend import TorchNativeAttnBackend

    TorchNativeAttnBackend.get_cuda_graph_seq_len_fill_value = lambda _: 1
    if hasattr(dp_attention, "memcpy_cpu"):  # not yet in 0.5.16
        dp_attention.memcpy_func = dp_attention.memcpy_cpu


def _no_rotary_kernel(*_: Any, **__: Any) -> None:
    raise RuntimeError("the CPU host has no fused rotary kernel; the model must use the torch form")


def _keep_mla_absorbed() -> None:
    # The fallback handler sends prefix-free batches to the decompressed form, whose head width
    # torch_native would then read out of 576-wide rows.
    from sglang.srt.models.deepseek_common.attention_backend_handler import (
        AttentionBackendRegistry,
    )
    from sglang.srt.models.deepseek_common.attention_forward_methods.forward_methods import (
        AttnForwardMethod,
    )

    AttentionBackendRegistry.register("torch_native", lambda attn, batch: AttnForwardMethod.MLA)
