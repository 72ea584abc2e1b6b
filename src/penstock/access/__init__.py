"""Who somebody is, and what they may do: proofs, rules, and nothing of sockets or of the cluster.

| module      | what                                                                        |
|-------------|-----------------------------------------------------------------------------|
| `users`     | users, what proves that somebody is one, what they may use                  |
| `rules`     | what a rule allows, on which streams                                        |
| `scram`     | passwords and tokens: a proof that does not tell the secret                 |
| `nkeys`     | NATS nkeys: a signature                                                     |
| `handshake` | the broker's side of either, message by message                             |
| `proving`   | the other side                                                              |
"""

from penstock.access.rules import Operation, Rule
from penstock.access.users import Credential, CredentialKind, Quotas, User

__all__ = ["Credential", "CredentialKind", "Operation", "Quotas", "Rule", "User"]
