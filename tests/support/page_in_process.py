"""The pages of a run, served by a thread of this process."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from shoal.coordinator.http.server import bind, url_of, uvicorn_server
from shoal.page.app import make_app
from shoal.page.pages import Pages
from shoal.page.source import RunFiles

END_S = 10.0


@contextmanager
def serving_pages(run: Path, *, public: bool = False) -> Iterator[str]:
    """The URL of the pages, without a slash at its end."""
    pages = Pages(RunFiles.open(run), public=public)
    listener = bind("127.0.0.1", 0)
    server = uvicorn_server(make_app(pages), 256)
    thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
    thread.start()
    try:
        while not server.started:
            time.sleep(0.01)
        yield url_of(listener)
    finally:
        pages.stop()
        server.should_exit = True
        thread.join(END_S)
        listener.close()
