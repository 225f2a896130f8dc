"""Two ranks of one SGLang engine -> both on the first GPU, their collectives through the host.

An SGLang plugin for machines with a single GPU; must not know what the ranks are asked. NCCL before
2.30 takes no two ranks on one device, so groups use gloo and CUDA tensors go by way of host memory:
slow, but every kernel between two collectives is the one that runs on two GPUs.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import backend_steps

OPTIONS = {
    # Graphs take no collective on the host.
    "disable_cuda_graph": True,
}
"""Engine arguments that such an engine needs."""

_STATE = "sglang.srt.distributed.parallel_state"


def register() -> None:
    """Hook SGLang in every process of an engine."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    check = "sglang.srt.server_args.ServerArgs.check_server_args"
    HookRegistry.register(check, _no_step, HookType.AFTER)
    HookRegistry.register(f"{_STATE}.get_default_distributed_backend", _gloo, HookType.AROUND)
    HookRegistry.register(f"{_STATE}.GroupCoordinator.__init__", _host_only, HookType.AROUND)
    for name, call in (
        ("_all_reduce_in_place", _all_reduce),
        ("_all_gather_into_tensor", _all_gather),
        ("_reduce_scatter_tensor", _reduce_scatter),
    ):
        HookRegistry.register(f"{_STATE}.GroupCoordinator.{name}", call, HookType.REPLACE)


def install(folder: Path) -> None:
    """Let engines of this process put all their ranks on the first GPU; call before the first."""
    backend_steps.install(folder, "one_gpu", f"{__name__}:register")
    # Ranks see less memory free than they found when the other one starts.
    os.environ["SGLANG_ENABLE_TP_MEMORY_INBALANCE_CHECK"] = "0"


def _no_step(_: None, arguments: Any) -> None:
    # SGLang insists on one step at least, and has done so by now.
    arguments.gpu_id_step = 0


def _gloo(_: Callable[[str], str], device: str) -> str:
    return "gloo"


def _host_only(original: Callable[..., None], group: Any, *args: Any, **options: Any) -> None:
    original(group, *args, **options | {"use_pynccl": False, "use_custom_allreduce": False})


def _all_reduce(group: Any, tensor: Any) -> None:
    import torch

    host = tensor.cpu()
    torch.distributed.all_reduce(host, group=group.cpu_group)
    tensor.copy_(host)


def _all_gather(group: Any, output: Any, tensor: Any) -> None:
    import torch

    host = torch.empty(output.shape, dtype=output.dtype)
    torch.distributed.all_gather_into_tensor(host, tensor.cpu(), group=group.cpu_group)
    output.copy_(host)


def _reduce_scatter(group: Any, output: Any, tensor: Any) -> Any:
    host = tensor.clone()
    _all_reduce(group, host)
    output.copy_(host.chunk(group.world_size)[group.rank_in_group])
    return output
