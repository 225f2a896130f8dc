"""SGLang's own weight updater with a stand-in worker -> what tiers are told, in which order."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

from irminsul.integrations.sglang.tiers.install import install
from sglang.srt.managers.scheduler_components import weight_updater as module


class Tiers:
    """Notes the calls."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def new_weights(self) -> None:
        self.calls.append("new weights")

    def finish_weights(self) -> None:
        self.calls.append("finish weights")

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

    runner = SimpleNamespace(
        weight_updater=SimpleNamespace(
            update_weights_from_disk=load,
            begin_weight_update=lambda: tiers.calls.append("begin"),
            end_weight_update=lambda run_post_load: tiers.calls.append("end"),
        )
    )
    made = object.__new__(module.SchedulerWeightUpdaterManager)
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
    tiers.calls = []
    if hasattr(updater, "begin_weight_update"):
        module.torch = SimpleNamespace(distributed=SimpleNamespace(barrier=lambda group: None))
        made = SimpleNamespace(selector="all")
        updater._session = updater.tp_cpu_group = None
        assert updater.begin_weight_update(made).success
        assert updater.end_weight_update(made).success
    facts["session"] = tiers.calls
    print("FACTS " + json.dumps(facts))


if __name__ == "__main__":
    main()
