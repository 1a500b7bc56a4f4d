"""The order that shop and bank share."""

from dataclasses import dataclass


@dataclass
class Order:
    number: str
    customer: str
    cents: int
