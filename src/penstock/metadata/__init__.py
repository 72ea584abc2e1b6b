"""Cluster metadata: commands, the immutable image they fold to, and the controller that proposes most of them.

| package or module                   | contents                                                                 |
|-------------------------------------|--------------------------------------------------------------------------|
| `controller`                        | the metadata leader: sessions, reachability, recoveries, proposals       |
| `persistence`                       | the bytes of an image, and the journal of a broker from before Raft      |
| `effects`                           | the effect of each command on the image                                  |
| `elections`                         | leader election of one partition                                         |
| `placement`, `voters`               | the brokers for a new stream's partitions; the next voter                |
| `feature_levels`                    | the cluster's feature level                                              |
| `feature_versions`                  | what waits for that level, or for brokers of a version                   |
| `disk_identity`                     | older copies of a data directory                                         |
| `commands`, `image`                 | the commands, and the state; its maps are those of `persistent_map`      |
"""
