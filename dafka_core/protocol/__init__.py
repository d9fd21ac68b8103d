"""The Dafka protocol without I/O: messages in, messages out.  No sockets, no clock, no threads.

- ``messages``, ``checks``, ``wire``: the commands, and their frames in both layouts
- ``bursts``: many RECORD or DIRECT-RECORD messages at once, as runs
- ``fetching``: what is missing, when to ask and when to ask again
- ``producing``, ``consuming``, ``storing``, ``reading``: one role each, built on ``fetching``
- ``beaconing``: who is there, from the towers' beacons
"""
