"""Cluster metadata: commands, the immutable image they fold to, and the controller that proposes most of them.

| package or module                   | contents                                                                 |
|-------------------------------------|--------------------------------------------------------------------------|
| `controller`                        | the metadata leader: sessions, reachability, recoveries, proposals       |
| `persistence`                       | the bytes of an image, and the journal of a broker from before Raft      |
| `effects`                           | the effect of each command on the image                                  |
| `elections`                         | leader election of one partition                                         |
| `placement`, `voters`               | the brokers for a new stream's partitions; the next voter                |
| `feature_versions`, `disk_identity` | commands that older brokers know; older copies of a data directory       |
| `commands`, `image`                 | the commands, and the state; its maps are those of `persistent_map`      |
"""
