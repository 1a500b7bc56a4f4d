"""Checks of a row of the roster."""

from gossipq import limits
from gossipq.endpoints import endpoint
from gossipq.errors import BadName, BadRequest, ConfigError
from gossipq.texts import many
from gossipq.values import Member

KEY_BYTES = 32  #: of a public key


def check_member(member: Member) -> None:
    """Raise BadName, BadRequest if a node describes itself impossibly."""
    for what, text in (("a node", member.name), ("a copy", member.copy)):
        if not text or len(text.encode("utf-8", "replace")) > limits.NAME_BYTES_MAX or not text.isprintable():
            raise BadName(
                f"the name of {what} is {text!r}", hint=f"1 to {limits.NAME_BYTES_MAX} bytes of plain text"
            )
    try:
        endpoint(member.endpoint)
    except ConfigError as error:
        raise BadRequest(
            f"the address of {member.name} is {member.endpoint!r}", hint="tcp://HOST:PORT"
        ) from error
    if any(len(key) not in (0, KEY_BYTES) for key in (member.key, member.next_key)):
        raise BadRequest(f"a key of {member.name} is none of CURVE", hint=f"{KEY_BYTES} bytes, or none")
    if not 1 <= member.workers <= limits.WORKERS_MAX:
        raise BadRequest(
            f"{member.name} has {many(member.workers, 'worker')}",
            hint=f"1 to {limits.WORKERS_MAX} are allowed",
        )
