"""The Dafka protocol without I/O: messages in, messages out.  No sockets, no clock, no threads.

``messages`` are objects that cannot be invalid; ``codec`` turns them into frames and back, in both
layouts, by the kinds of ``fields``.  ``timing`` has all times, and ``limits`` the limits of several
modules, with their reasons.  A role (``role``) decides for one node: ``producer_role``,
``store_role`` and ``consumer_role``, also of readers.

A consumer learns that it missed a record when a later record or a head (HEAD, DIRECT-HEAD,
HEADS-REPLY) raises the known end of a partition above the next record (``partition_fetcher``).  It
requests the missing records from the producer and the stores, some partitions at a time and each
again until it arrives (``fetch_scheduler``).  If nothing arrives, it asks all stores for what they
have, and reports a loss (``LossDetector`` in ``consumer_role``).

A producer knows that all stores it needs have a record when ``acks`` of them have acknowledged its
offset or a later one: ``ProducerRole.acknowledged``.  A store acknowledges what its log has synced,
and again with every HEAD (``store_role``).  Which of two producers' records count after a takeover
is decided by ``Histories`` in ``store_partition``, and asked by ``producer_role.Takeover``.

``store_directory`` finds all stores, asks them a question and knows when the answer is complete;
``store_requests`` answers.  ``store_partition`` is a partition in a store, ``store_limits`` what a
store accepts.  ``beacons`` announce nodes to each other, ``record_limits`` what each accepts,
``authorization`` what a key allows.
"""
