"""The Dafka protocol without I/O: messages in, messages out.  No sockets, no clock, no threads.

- ``limits``, ``fields``, ``messages``, ``codec``: the messages, and their frames in both layouts;
  ``bulk_decoder``: many record messages at once, as record batches
- ``partition_fetcher``, ``partition_states``: what is missing, and when to ask for it
- ``role``: what all roles are; ``producer_role``, ``consumer_role``, ``store_role``,
  ``reader_role``: one each
- ``store_partition``, ``histories``, ``store_limits``: what a store knows of a partition, and takes
- ``store_directory``, ``store_requests``: asking stores, and their answers
- ``beacons``: which peers there are
"""
