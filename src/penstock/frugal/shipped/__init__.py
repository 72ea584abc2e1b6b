"""Middleware that is shipped, in an order in which several make sense, outermost first.

| middleware                         | sides  | what it does                                                   |
|------------------------------------|--------|----------------------------------------------------------------|
| `tracing.trace()`                  | all    | a span for each call, `traceparent` with it (OpenTelemetry)    |
| `metrics.CallMetrics()`            | all    | counts and durations, as a page for Prometheus                 |
| `call_log.log_calls()`             | all    | a log line for each call                                       |
| `authentication.require_token(…)`  | server | refuses callers without a token                                |
| `authentication.with_token(…)`     | client | sends it                                                       |
| `deadline.limit_time(…)`           | all    | the most time of a call                                        |
| `retry.retry()`                    | client | repeats idempotent calls that failed on the way, with back-off |
| `circuit_breaker.CircuitBreaker()` | client | stops calling a service that fails                             |

So metrics count a call with its retries as one, and the breaker counts each try. Another order has another meaning.
"""
