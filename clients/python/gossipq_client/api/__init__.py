"""The client of a program, its messages and subscriptions: blocking in `sync`, for asyncio in `aio`."""
