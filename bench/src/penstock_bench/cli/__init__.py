"""`penstock bench`: options, progress and output; the measurements are in `penstock_bench`."""
