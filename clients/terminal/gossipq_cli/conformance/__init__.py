"""Tests whether a client in another language keeps its guarantees, against nodes that are killed.

The client is driven through a *driver*, a program that calls its public functions (`driver`).
"""
