"""The definition of greedy acceptance that the kernel is tested against, in plain Python."""

from collections.abc import Sequence

__all__ = ["commit_reference", "speculative_accept_reference"]

_HEADER = 8  # words before the emitted ids


def commit_reference(
    emitted: Sequence[int], cycle: Sequence[int], output: Sequence[int]
) -> tuple[list[int], list[int]]:
    """Return the cycle's words and the output ring after these ids were emitted."""
    position, total = cycle[0], cycle[4]
    words = [position + len(emitted), emitted[-1], len(emitted) - 1, len(emitted)]
    words += [total + len(emitted), *cycle[5:_HEADER], *emitted]
    words += [-1] * (len(cycle) - len(words))
    ring = list(output)
    for i, token in enumerate(emitted):
        if ring:
            ring[(total + i) % len(ring)] = token
    return words, ring


def speculative_accept_reference(
    ids: Sequence[int], drafts: Sequence[int], cycle: Sequence[int], output: Sequence[int] = ()
) -> tuple[list[int], list[int]]:
    """Return the cycle's words and the output ring after one greedy cycle.

    Args:
        ids: the target's own choice at each of the R rows; -1 where it has none.
        drafts: the R - 1 guesses.
        cycle: the words before, 8 + R of them.
        output: the ring of emitted ids before; empty: none is kept.
    """
    accepted = 0
    while accepted < len(drafts) and drafts[accepted] == ids[accepted] >= 0:
        accepted += 1
    return commit_reference(ids[: accepted + 1], cycle, output)
