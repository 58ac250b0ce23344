"""The wire format: what is taken, what is refused, what is the same."""

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.protocol import (
    MAX_INTEGER,
    MAX_ITEMS,
    MAX_TEXT_BYTES,
    ContainerSpec,
    EnrollRequest,
    Inventory,
    Malformed,
    Order,
    Phase,
    SeenGpu,
    SeenInstance,
    SyncReply,
    SyncRequest,
    Want,
    orders_digest,
)
from tests.agents.orders import gone, reply, running, spec

REQUEST = SyncRequest(
    1,
    "run",
    7,
    Inventory(8, 1024, (SeenGpu("GPU-a", "NVIDIA L4", 23_034),)),
    (SeenInstance("i1", 2, Phase.RUNNING, endpoints={"22": "10.0.0.5:20000"}),),
)


def over_the_wire(message: Any) -> Any:
    return type(message).from_json(json.loads(json.dumps(message.to_json())))


class TestMessage:
    @pytest.mark.parametrize(
        "message",
        [
            REQUEST,
            reply(running(spec=spec(ports=(22,), command=("a", "b"), env={"A": "1"})), gone("i2")),
            EnrollRequest(1, "hrj_x", "rack-1", REQUEST.inventory),
        ],
        ids=lambda message: type(message).__name__,
    )
    def test_is_the_same_on_the_other_side(self, message: Any) -> None:
        assert over_the_wire(message) == message

    def test_ignores_fields_of_a_later_version(self) -> None:
        data = REQUEST.to_json() | {"mood": "good"}

        assert SyncRequest.from_json(data) == REQUEST

    def test_fills_in_what_an_earlier_version_does_not_say(self) -> None:
        data = {"instance": "i1", "generation": 1, "want": "gone", "expires_in_seconds": 0}

        assert Order.from_json(data) == Order("i1", 1, Want.GONE, 0)

    @pytest.mark.parametrize(
        ("change", "sentence"),
        [
            ({"seq": "7"}, r"SyncRequest\.seq must be a int"),
            ({"seq": True}, r"SyncRequest\.seq must be a int"),
            ({"seq": MAX_INTEGER + 1}, r"SyncRequest\.seq is out of range"),
            ({"seq": 10**400}, r"SyncRequest\.seq is out of range"),
            ({"wait_seconds": float("nan")}, r"SyncRequest\.wait_seconds is out of range"),
            ({"wait_seconds": float("inf")}, r"SyncRequest\.wait_seconds is out of range"),
            ({"wait_seconds": 10**400}, r"SyncRequest\.wait_seconds is out of range"),
            ({"run_id": "a\0b"}, r"SyncRequest\.run_id must not contain NUL"),
            ({"run_id": "\ud800"}, r"SyncRequest\.run_id is not valid Unicode"),
            ({"run_id": "é" * MAX_TEXT_BYTES}, r"SyncRequest\.run_id must have at most"),
            ({"run_id": None}, r"SyncRequest\.run_id must be a str"),
            ({"inventory": []}, r"SyncRequest\.inventory must be an object"),
            ({"instances": {}}, r"SyncRequest\.instances must be a list"),
            ({"instances": [3]}, r"SyncRequest\.instances\[0\] must be an object"),
            ({"instances": [{}] * (MAX_ITEMS + 1)}, r"SyncRequest\.instances must have at most"),
        ],
    )
    def test_refuses_what_is_not_of_its_shape(self, change: dict[str, Any], sentence: str) -> None:
        with pytest.raises(Malformed, match=sentence):
            SyncRequest.from_json(REQUEST.to_json() | change)

    @pytest.mark.parametrize("endpoints", [{"22": 22}, {"\ud800": "a"}, {"22": None}, ["22"]])
    def test_refuses_a_map_that_is_none(self, endpoints: Any) -> None:
        data = REQUEST.instances[0].to_json() | {"endpoints": endpoints}

        with pytest.raises(Malformed, match=r"endpoints"):
            SeenInstance.from_json(data)

    def test_names_the_field_that_is_missing(self) -> None:
        with pytest.raises(Malformed, match=r"SeenInstance.*phase"):
            SeenInstance.from_json({"instance": "i1", "generation": 1})

    def test_refuses_a_word_that_is_not_in_the_list(self) -> None:
        data = REQUEST.instances[0].to_json() | {"phase": "asleep"}

        with pytest.raises(Malformed, match="must be one of pulling"):
            SeenInstance.from_json(data)

    @given(
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
            lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
        )
    )
    def test_refuses_anything_else_without_falling_over(self, data: object) -> None:
        for kind in (SyncRequest, SyncReply, EnrollRequest, ContainerSpec):
            with pytest.raises(Malformed):
                kind.from_json(data)


class TestOrdersDigest:
    def test_does_not_change_when_a_lease_is_renewed(self) -> None:
        order = running()

        assert orders_digest((order,)) == orders_digest((replace(order, expires_in_seconds=1.0),))

    def test_does_not_depend_on_the_sequence(self) -> None:
        assert orders_digest((running("i1"), running("i2"))) == orders_digest(
            (running("i2"), running("i1"))
        )

    @pytest.mark.parametrize(
        "change",
        [{"want": Want.GONE}, {"generation": 2}, {"may_start": False}, {"spec": spec(image="x")}],
    )
    def test_changes_with_what_is_ordered(self, change: dict[str, Any]) -> None:
        assert orders_digest((running(),)) != orders_digest((replace(running(), **change),))


class TestSpecDigest:
    def test_is_the_same_on_both_sides_of_the_wire(self) -> None:
        wanted = spec(env={"B": "2", "A": "1"}, ready_timeout_seconds=30.0)

        assert over_the_wire(wanted).digest() == wanted.digest()
