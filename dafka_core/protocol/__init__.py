"""The Dafka protocol without I/O: messages in, messages out.  No sockets, no clock, no threads.

- ``limits``, ``fields``, ``messages``, ``codec``: the messages, and their frames in both layouts;
  ``bulk_decoder``: many record messages at once, as record batches
- ``partition_fetcher``, ``partition_states``: missing records, and when to request them
- ``role``: the interface of all roles; ``producer_role``, ``consumer_role``, ``store_role``,
  ``reader_role``: one each
- ``store_partition``, ``histories``, ``store_limits``: a store's partitions, and what it accepts
- ``store_directory``, ``store_requests``: questions to stores, and their answers
- ``beacons``: discovery of peers
"""
