"""The replication engine: keeps one log of entries equal on all members of a group, and never loses what it
acknowledged.

It is the Raft protocol in the words of Apache RocketMQ's DLedger:

- Raft: D. Ongaro, J. Ousterhout, "In Search of an Understandable Consensus Algorithm" (the paper), and
  D. Ongaro's thesis, "Consensus: Bridging Theory and Practice". Comments cite both by section: "Raft 5.4.2",
  "thesis 9.6".
- DLedger: openmessaging/dledger 0.2.7. Its class names are given beside each part.
- Kafka: leader epochs and the high watermark (KIP-101).

The engine knows nothing of messages, topics or RocketMQ. An entry is a header and bytes that the host chose.


The log
=======

Entries are numbered from 0 by their index. Each carries the term of the leader that created it. An entry is
*committed* when it is on the disks of a majority; from then on it is never lost and never replaced. Only
committed entries are visible to the host. The index of the last one is the commit index (Kafka's high
watermark):

    begin_index              commit_index   persisted_index  end_index
         |                        |              |              |
         v                        v              v              v
         0    1    2    3    4    5    6    7    8    9    10   11
      +----+----+----+----+----+----+----+----+----+----+----+----+
      | t1 | t1 | t1 | t2 | t2 | t2 | t4 | t4 | t4 | t4 | t4 | t4 |
      +----+----+----+----+----+----+----+----+----+----+----+----+
        ^              ^              ^
    epoch (1, 0)   epoch (2, 3)   epoch (4, 6)

This node's own disk has the log up to persisted_index. A leader's commit index may be ahead of it: then a
majority of the others has the entries.

Two rules follow from how entries are created and stored (Raft 5.3, Log Matching):

1. Two entries with the same index and term are the same entry, byte for byte.
2. If two logs have the same entry, they are equal in all entries before it.

Terms never fall along a log. So the whole history of a log is a short list of *leader epochs*: (term, first
index of the term). `dledger.core.epochs` keeps it, and all comparisons between logs use it instead of the
entries.

The core handles ranges of entries (first index, last index, term, bytes), never single entries: the bytes
travel from the leader's file to the follower's file unchanged.


Roles and terms
===============

Time is divided into terms, numbered upwards. Every message carries its sender's term. Each term has at most
one leader, because each member has one vote in a term and a leader needs a majority of the votes (Raft 5.1,
5.2).

- A LEADER appends entries and pushes them to the others.
- A FOLLOWER accepts entries from the leader of its term and answers requests for votes.
- A CANDIDATE asks for votes. In its first round, the pre-vote, it has not raised its term yet.

                    no leader heard for an election time-out
           +----------+  ------------------------------------>  +-----------+
    start->| FOLLOWER |                                         | CANDIDATE |---+ round lost: ask again
           +----------+  <------------------------------------  +-----------+<--+ after a random delay
                ^          a higher term, or a leader                 |
                |                                                     | votes of a majority
                |   a higher term, or no answers of a                 v
                |   majority for 1.5 s (check-quorum)           +-----------+
                +---------------------------------------------- |  LEADER   |
                                                                +-----------+

A message with a higher term makes its receiver a follower of that term at once. A message of a lower term is
answered with the receiver's term, which makes the outdated sender step down (Raft 5.1).


Elections
=========

`dledger.core.election`; DLedger's DLedgerLeaderElector.

A leader sends a message to each peer at least every 250 ms. A follower that gets no message from its leader
for a random time of 900 to 1,500 ms starts an election; after its connection to the leader closed it waits
only 1 to 50 ms. An election has two rounds:

1. Pre-vote (thesis 9.6): "would you vote for me in term T + 1?" Nothing changes on either side, so a node
   that was cut off from the others can ask as often as it likes, and deposes no leader when it returns.
2. Vote (Raft 5.2): with the pre-votes of a majority the node raises its term, votes for itself, makes both
   durable, and asks for votes.

A voter refuses

- while it has heard its leader within the last 900 ms, the *lease* (thesis 4.2.3), unless the connection to
  that leader closed or the leader itself asked for the election;
- a candidate whose log is less complete: the last term decides, then the length (Raft 5.4.1). A committed
  entry is on a majority, and a vote comes from a majority; the two have a member in common. So every leader
  has all committed entries;
- a second candidate in the same term;
- always, if it may have forgotten an earlier vote (see Impaired nodes).

A vote leaves the voter only after it is durable: a node that forgot its vote in a crash could vote twice.

The new leader first appends one entry of its own term. Entries of earlier terms are never committed by
counting copies, since they can still be replaced even if a majority has them (Raft 5.4.2 and Figure 8); they
are committed together with the leader's first own entry. Until that entry exists the leader refuses appends
(LEADER_NOT_READY).


Replication: COMPARE, TRUNCATE, APPEND, COMMIT
==============================================

`dledger.core.dispatcher` at the leader, `dledger.core.handler` at the follower; DLedger's EntryDispatcher and
EntryHandler, the parts of DLedgerEntryPusher. The four requests together are Raft's AppendEntries.

A leader has one dispatcher for each peer. It starts in COMPARE:

            the peer's log is a prefix of the leader's
        +---------------------------------------------------+
        |                                                   v
    COMPARE -- the peer has entries that --> TRUNCATE --> APPEND
      ^  ^     the leader lacks                  |          |
      |  +------ the peer's log changed ---------+          |
      +-- INCONSISTENT_STATE, connection closed, entries ---+
          that the peer needs were removed

- COMPARE: "do you have the entry (index, term)?" The answer says where the follower's log begins and ends,
  the term of its end, and its last entry that can still match. Each round skips a whole term of one side or
  the other.
- TRUNCATE: "drop your entries from this index on". It names the last entry of the log that it is meant for,
  so that a delayed TRUNCATE does not change a log that has changed since. A follower never truncates below
  its commit index.
- APPEND: entries, and the term of the entry before them. The follower appends them only at its end, and
  only if that term is equal: then its whole log is a prefix of the leader's (Log Matching). Many pushes are
  under way at the same time.
- COMMIT: the leader's commit index, once a second, while there is nothing else to send. Every other request
  of a leader carries it too.

A follower acknowledges a push when *its disk* has it. The acknowledgement is cumulative: "my disk has your
log up to index N".


Commit: the quorum counts what disks have
=========================================

`dledger.core.leadership`; DLedger's QuorumAckChecker.

The leader keeps a watermark for each member: the index up to which that member's disk is known to have the
log of this term (Raft's matchIndex). Its own watermark is what its own disk has, which may be less than what
a majority of the others have. The majority-th highest watermark becomes the commit index, if its entry is of
the leader's own term:

    watermarks n0 = 101, n1 = 100, n2 = 90; majority = 2: the commit index is 100

Then the callers that waited for entries up to there are answered. The next request carries the commit index
to the followers; each follower commits only up to entries that it knows to be the leader's
(`verified_index`).


What is durable before what
===========================

A node's promises are: term, vote, and "my disk has the log up to N". None leaves a node before the write
behind it has been synced. The core does no I/O; each turn it returns an `Output` whose parts the host carries
out in this order:

    1  log_ops              into the store, in memory
    2  send_now             pushes and everything else that promises nothing about this node's disk
    3  hard_state, log      written and synced: one write and one fdatasync for everything collected meanwhile
    4  send_after_persist   votes, requests for votes, acknowledgements, answers to COMPARE and TRUNCATE
    5  Node.persisted()     the leader's own watermark

So a leader pushes to its followers while its own write runs (thesis 10.2.1). A failed write or sync stops the
node: after it, nothing is known about what the disk has. `dledger.writer` carries out 3 and 4,
`dledger.durable_state` keeps term and vote.


Leadership transfer
===================

`dledger.core.leadership`; thesis 3.10, DLedger's handleLeadershipTransfer.

The leader refuses new appends, waits until the transferee has every entry and all are committed, and then
sends TakeLeadershipRequest. The transferee starts an election at once; its requests say that the leader
agreed, so that the lease does not stand in the way. A transfer that has not succeeded after 1 s is given up.


Impaired nodes
==============

`dledger.core.repair`; the problem is that of Alagappan et al., "Protocol-Aware Recovery for Consensus-Based
Storage".

A node that lost log entries, its vote, or its whole disk may have forgotten a promise. It must not vote, or
committed entries could be lost. It is marked durably (`impaired`), follows and stores entries, and asks all
members for their state. It votes again when its disk has all that the leader of its term had, and, if the
vote was lost, after every other member has answered, so that its term is not lower than any in which it may
have voted.

A new group is a group of empty disks. No node can know that its own disk is new, so all start impaired; they
are healed when all have answered that their logs are empty.

Entries that are damaged in place do not impair a node: it knows which entries they are.
`dledger.maintenance` fetches the same (index, term) from a peer and writes it over the damaged bytes.


The modules
===========

    core/              the protocol without I/O: messages and the time in, `Output` out
      node             one member: role, term, vote, commit index; passes each message to a part below
      election         the election timer, the rules for a vote, the count of a ballot
      leadership       what exists only while leading; one dispatcher for each peer
      dispatcher       COMPARE, TRUNCATE and APPEND to one peer
      flow_control     how much may be pushed to a peer that is far behind
      handler          the follower's side of replication
      commit           the quorum's index; appends that wait for their commit
      epochs           begin, end and terms of the log
      repair           how an impaired node comes to vote again
      messages, output, events, status, config, ports, types: values and interfaces
    server             the asyncio driver of a node: turns of the event loop, timers, the host's interface
    writer             the writer thread: group commit of log and vote, acknowledgements after the sync
    durable_state      the files of term, vote and the mark of an impairment
    transport, codec   connections between the members, and their frames
    credentials        what members show each other to be believed
    maintenance        disk space, checkpoints, retention, reading the log for damage, its repair from peers
    environment, fs    the interfaces to clocks, random numbers and files; a simulation has its own

docs/dledger.md has the details, each with the golden trace that shows it (tests/golden/dledger).
"""
