"""What an order is, for the shop and for the bank."""

from dataclasses import dataclass


@dataclass
class Order:
    number: str
    customer: str
    cents: int
