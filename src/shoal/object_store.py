"""Opens an object store (S3, R2, GCS, Azure, a directory) by URL, with credentials from the environment.

Imports obstore: only those import this who need a store.
"""

from collections.abc import Mapping
from typing import Any

from obstore.exceptions import BaseError
from obstore.store import ObjectStore, from_url

from shoal.errors import ConfigError, first_line


def open_object_store(what: str, url: str, options: Mapping[str, str]) -> ObjectStore:
    """The store at a URL such as s3://BUCKET/PREFIX; `options` are obstore's own, such as an endpoint or a region.

    `what` names the setting that holds the URL, for the error of one that leads nowhere.
    """
    plain: Any = {"allow_http": True} if options.get("endpoint", "").startswith("http://") else {}
    config: Any = dict(options)
    try:
        return from_url(url, config=config, client_options=plain)
    except (BaseError, ValueError) as error:
        raise ConfigError(f"{what} {url}: {first_line(error)}; give a directory or s3://BUCKET") from error
