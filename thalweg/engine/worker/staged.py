"""Steps of a pipeline stage, with what passes to and from its neighbours."""

from __future__ import annotations

from collections.abc import Callable

from thalweg.hal.comm import StageLinks
from thalweg.hal.device import Pending
from thalweg.hal.step import StateBox, StepBatch, StepResult
from thalweg.models.step import STAGE


class SentStep:
    """A step that is done here."""

    def __init__(self, result: StepResult) -> None:
        self._result = result

    def ready(self) -> bool:
        return True

    def result(self) -> StepResult:
        return self._result


class StagedRunner:
    """Launches steps as `launch` does, each after the stage before has sent its part, and before the stage behind gets it.

    A stage waits for its neighbours here, so that steps are in order on every rank. While it waits, or goes on with the next
    batch, the others compute. The result is that of the last stage. Another stage has none."""

    def __init__(self, launch: Callable[[StepBatch], Pending], links: StageLinks, state: StateBox) -> None:
        self._launch, self._links, self._state = launch, links, state

    def __call__(self, batch: StepBatch) -> Pending:
        rows, held = batch.tokens.shape[0], self._state.value[STAGE]
        if "enter" in held:
            self._links.receive(held["enter"][:, :rows])
        pending = self._launch(batch)
        if "leave" not in held:
            return pending
        result = pending.result()  # or the error of the step, which leaves nothing to send
        self._links.send(self._state.value[STAGE]["leave"][:, :rows])
        return SentStep(result)
