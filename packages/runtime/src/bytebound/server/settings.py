"""What the server was told at its start: limits, the name of the model, who may ask."""

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from bytebound.errors import InvalidSettingError
from bytebound.settings import check_integer

MEBIBYTE = 2**20


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """Every setting of one server; a value that is out of range raises InvalidSettingError."""

    model_name: str
    """What clients call the model; never a path."""
    api_key: str | None = field(default=None, repr=False)
    """What clients must send; None lets everybody in who can reach the address."""
    max_queue: int = 16
    """Requests that may wait behind the running one."""
    request_timeout_s: float = 600.0
    """From the arrival of a request to its last token, waiting included."""
    max_body_bytes: int = 16 * MEBIBYTE
    max_prompt_tokens: int | None = None
    """A lower limit than the context; None: the context."""
    sampling: Mapping[str, Any] = field(default_factory=dict)
    """Fields of SamplingParams that a request without them gets, before the model's own."""

    def __post_init__(self) -> None:
        if not self.model_name or self.model_name != self.model_name.strip():
            raise InvalidSettingError(
                f"model_name={self.model_name!r}: expected a name without blanks at its ends"
            )
        if self.api_key is not None and (not self.api_key.strip() or not self.api_key.isascii()):
            # The value itself stays out of the message.
            raise InvalidSettingError("api_key: expected ASCII text that is not blank")
        check_integer("max_queue", self.max_queue, 0, 10_000)
        check_integer("max_body_bytes", self.max_body_bytes, 1024, 2**40)
        if self.max_prompt_tokens is not None:
            check_integer("max_prompt_tokens", self.max_prompt_tokens, 1, 2**40)
        if not 0 < self.request_timeout_s <= 7 * 86_400:
            raise InvalidSettingError(
                f"request_timeout={self.request_timeout_s!r}: expected seconds, above 0 and at "
                "most a week"
            )


def is_loopback(host: str) -> bool:
    """Whether only programs of this machine can reach ``host``, an address or a name."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def check_access(host: str, api_key: str | None) -> None:
    """Refuse an address that others can reach without a key.

    Raises:
        InvalidSettingError: ``host`` is not loopback and there is no key.
    """
    if api_key is None and not is_loopback(host):
        raise InvalidSettingError(
            f"host={host!r}: other machines can reach this address, so a key is needed; give "
            "--api-key or set BYTEBOUND_API_KEY, or use 127.0.0.1"
        )
