"""Cluster metadata: commands, the immutable image they fold to, and the controller that proposes most of them.

| module                                  | contents                                                         |
|-----------------------------------------|------------------------------------------------------------------|
| `commands`, `image`, `apply`            | the commands, the state, and how one yields the other            |
| `streams`, `brokers`, `leaderships`     | the effect of each command                                       |
| `elections`                             | leader election of one partition                                 |
| `placement`                             | the brokers for a new stream's partitions                        |
| `controller`                            | the metadata leader: answers brokers, proposes commands          |
| `sessions`, `reachability`, `preferred` | dead brokers, unreachable leaders, preferred leaders that return |
| `command_proposals`                     | proposed commands that are not applied yet                       |
| `snapshot`, `persistent`                | the bytes of an image; the maps it consists of                   |
| `journal`, `fold`                       | the commands of a broker from before Raft, on its disk           |
"""
