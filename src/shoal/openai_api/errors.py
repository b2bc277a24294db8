"""Errors in OpenAI's shape, so that a client's own error handling understands them."""

from typing import Any

from pydantic import ValidationError

MAX_SHOWN = 80
TYPES = ("str", "int", "float", "bool")


class ApiError(Exception):
    """A request that is answered with an error: status, what is wrong, which parameter, and a code for programs."""

    def __init__(self, status: int, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.status, self.message, self.param, self.code = status, message, param, code

    @property
    def body(self) -> dict[str, Any]:
        kinds = {401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error"}
        kind = kinds.get(self.status, "server_error" if self.status >= 500 else "invalid_request_error")
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}

    @property
    def headers(self) -> dict[str, str]:
        """A full queue empties within seconds; the rest of a body that is refused is not read."""
        if self.status in (408, 413):
            return {"Connection": "close"}
        return {"Retry-After": "2"} if self.status in (429, 503) else {}


def invalid(param: str, message: str, code: str | None = None) -> ApiError:
    return ApiError(400, f"{param}: {message}", param=param, code=code)


def from_validation(error: ValidationError) -> ApiError:
    """The first thing that is wrong with a request, by the path of its field.

    Where a field may have several forms, the form that was meant is the one whose type is right.
    """
    faults = error.errors(include_url=False, include_context=False)
    same = [fault for fault in faults if fault["loc"][:1] == faults[0]["loc"][:1]]
    first = next((fault for fault in same if not fault["type"].endswith("_type")), faults[0])
    # Members of a union are in the path, too, which a client does not know.
    path = [str(part) for part in first["loc"] if isinstance(part, int) or (part.isidentifier() and part not in TYPES)]
    param = ".".join(path) or "body"
    if first["type"] == "missing":
        return invalid(param, "is missing; it is required")
    if first["type"] == "extra_forbidden":
        return invalid(param, "is not a parameter of this endpoint", "unknown_parameter")
    return invalid(param, f"{first['msg']}, not {shown(first['input'])}")


def shown(value: object) -> str:
    """A value of a request, short and printable."""
    text = value if isinstance(value, str) else repr(value)
    text = text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}..."
    return repr(text) if isinstance(value, str) else text
