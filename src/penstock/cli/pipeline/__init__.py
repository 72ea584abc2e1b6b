"""`penstock pipeline`: Spark jobs that archive, tabulate, audit and replay a stream; the jobs are in
`penstock.spark`.
"""
