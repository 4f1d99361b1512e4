"""Recordings: what must not happen while one is made."""

import gc
import weakref

import pytest
from bytebound.cuda.graphs import no_garbage_collection


class Cycle:
    """Collected by nothing but the collector."""

    def __init__(self) -> None:
        self.itself = self


def test_garbage_is_collected_before_and_not_within() -> None:
    before = weakref.ref(Cycle())
    with no_garbage_collection():
        assert before() is None
        assert not gc.isenabled()
        within = weakref.ref(Cycle())
        for _ in range(2000):  # more than makes the collector run
            Cycle()
        assert within() is not None
    assert gc.isenabled()


def test_the_collector_is_left_as_it_was() -> None:
    gc.disable()
    try:
        with no_garbage_collection():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
    with no_garbage_collection():
        with no_garbage_collection():
            pass
        assert not gc.isenabled()
    assert gc.isenabled()
    with pytest.raises(ValueError, match="within"), no_garbage_collection():
        raise ValueError("within")
    assert gc.isenabled()
