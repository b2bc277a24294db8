"""Wakes a caller of vLLM whose engine core was killed: vLLM's synchronous client would wait for its answer for ever.

vLLM notices that the process is gone and marks its client, but whoever waits for outputs or for the result of a call is
not told.
"""

# vLLM is an extra that type checks and most machines do not have.
# mypy: disable-error-code="import-not-found,import-untyped,no-any-unimported"

import threading
import time
import weakref
from typing import Any

CHECK_S = 0.1


def watch_for_death(client: Any) -> None:
    """Gives every call of this client, from here on, an `EngineDeadError` once its engine core is gone."""
    from vllm.v1.engine.exceptions import EngineDeadError

    alive = weakref.ref(client)

    def watch() -> None:
        while (watched := alive()) is not None:
            if watched.resources.engine_dead:
                watched.outputs_queue.put_nowait(EngineDeadError())
                for result in list(watched.utility_results.values()):
                    if not result.done():
                        result.set_exception(EngineDeadError())
            del watched
            time.sleep(CHECK_S)

    threading.Thread(target=watch, daemon=True, name="vllm-death-watch").start()
