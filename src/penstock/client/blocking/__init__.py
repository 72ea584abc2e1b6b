"""The blocking API: runs the asyncio client (`client.aio`) on a thread of its own."""
