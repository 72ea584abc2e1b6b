"""Commands for contracts in an IDL: Frugal and Thrift files."""
