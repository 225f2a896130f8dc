"""SGLang's own weight updater with a stand-in worker -> what tiers are told, in which order."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

from irminsul.integrations.sglang.tiers.install import install
from sglang.srt.managers.scheduler_components.weight_updater import SchedulerWeightUpdaterManager


class Tiers:
    """Notes the calls."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def new_weights(self) -> None:
        self.calls.append("new weights")

    def reset(self) -> None:
        self.calls.append("reset")

    def enter(self, request: Any) -> None:
        self.calls.append("enter")

    def pass_by(self, original: Any, scheduler: Any, *args: Any, **kw: Any) -> Any:
        return original(scheduler, *args, **kw)


def _updater(tiers: Tiers) -> Any:
    def load(*_: Any, **__: Any) -> tuple[bool, str]:
        tiers.calls.append("load")
        return True, ""

    def flush(**_: Any) -> bool:
        tiers.reset()
        return True

    runner = SimpleNamespace(weight_updater=SimpleNamespace(update_weights_from_disk=load))
    made = object.__new__(SchedulerWeightUpdaterManager)
    made.tp_worker = SimpleNamespace(
        update_weights_from_disk=load, weight_update_runners=lambda: [("target", runner)]
    )
    made.draft_worker = made.metrics_collector = None
    made.scheduler = SimpleNamespace(record_weight_version_change=lambda new_version: None)
    made.flush_cache = flush
    return made


def main() -> None:
    tiers = Tiers()
    install(tiers)  # type: ignore[arg-type]
    updater = _updater(tiers)
    facts = {}
    for flush in (True, False):
        tiers.calls = []
        request = SimpleNamespace(
            flush_cache=flush,
            torch_empty_cache=False,
            model_path="",
            load_format=None,
            recapture_cuda_graph=False,
            weight_version=None,
        )
        assert updater.update_weights_from_disk(request).success
        facts[str(flush)] = tiers.calls
    print("FACTS " + json.dumps(facts))


if __name__ == "__main__":
    main()
