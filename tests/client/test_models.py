"""Models of pydantic and classes of attrs as values: recognised by their shape."""

from dataclasses import dataclass
from math import nan
from typing import Any

import pytest

from gossipq.errors import BadRequest
from gossipq_client.values import Undecodable, payloads


class Order:
    """Shaped as a model of pydantic."""

    def __init__(self, item: str, price: float = 1.0) -> None:
        self.item, self.price = item, price

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Order) and vars(self) == vars(other)

    __hash__ = None  # type: ignore[assignment]

    def model_dump(self, mode: str) -> dict[str, Any]:
        assert mode == "json"
        return dict(vars(self))

    @classmethod
    def model_validate(cls, fields: Any) -> "Order":
        if not isinstance(fields, dict) or not isinstance(fields.get("item"), str):
            raise ValueError("item is missing")
        return cls(**fields)


@dataclass
class Basket:
    orders: list[Order]
    last: Order | None = None


def test_a_model_is_encoded_and_decoded_wherever_it_stands() -> None:
    for annotation, value in (
        (Order, Order("figs", 2.5)),
        (list[Order], [Order("figs")]),
        (dict[str, Order], {"ada": Order("figs")}),
        (Basket, Basket([Order("figs")], Order("tea"))),
        (Order | None, Order("figs")),
    ):
        assert payloads.decoder(annotation)(payloads.encoded(value)) == value


def test_a_value_that_is_no_model_is_undecodable() -> None:
    for annotation, raw in ((Order, b"{}"), (Order, b"17"), (list[Order], b'[{"item": 3}]'), (Order, b"no")):
        with pytest.raises(Undecodable):
            payloads.decoder(annotation)(raw)


def test_a_model_with_no_number_is_refused() -> None:
    for value in (Order("figs", nan), Basket([Order("figs"), Order("tea", nan)])):
        with pytest.raises(BadRequest, match="the value has nan at"):
            payloads.encoded(value)


def test_models_of_pydantic() -> None:
    pydantic = pytest.importorskip("pydantic")
    model: Any = pydantic.create_model("Sale", user=(str, ...), amount=(float, ...))
    ada, bob = model(user="ada", amount=12.5), model(user="bob", amount=1)
    for annotation, value in ((model, ada), (list[model], [ada, bob])):
        assert payloads.decoder(annotation)(payloads.encoded(value)) == value
    with pytest.raises(Undecodable, match="amount"):
        payloads.decoder(model)(b'{"user": "ada", "amount": "much"}')
    with pytest.raises(BadRequest, match=r"nan at \$.amount"):
        payloads.encoded(model(user="ada", amount=nan))


def test_classes_of_attrs() -> None:
    attrs = pytest.importorskip("attrs")
    kind: Any = attrs.make_class("Sale", {"user": attrs.field(type=str), "amount": attrs.field(type=float)})
    assert payloads.decoder(kind)(payloads.encoded(kind("ada", 1.5))) == kind("ada", 1.5)
    with pytest.raises(Undecodable, match="amount"):
        payloads.decoder(kind)(b'{"user": "ada", "amount": "much"}')
