"""What the cluster agrees on: commands, the immutable image they fold to, and the controller that proposes most.

| module                                 | what it knows                                                      |
|----------------------------------------|--------------------------------------------------------------------|
| `commands`, `image`, `apply`           | what can change, what there is, and how one comes of the other     |
| `streams`, `brokers`, `leaderships`    | what each command does                                             |
| `elections`                            | who leads one partition, and why                                   |
| `placement`                            | which brokers get a new stream                                     |
| `controller`                           | what the metadata leader does: answers brokers, proposes commands  |
| `sessions`, `reports`, `preferred`     | whom it takes for dead, for unreachable, for ready to lead again   |
| `proposals`                            | what it has proposed, until that is applied                        |
| `snapshot`, `persistent`               | the bytes of an image; the maps it is made of                      |
| `journal`, `fold`                      | the commands of a broker that is alone, on its disk                |
"""
