"""What tests of Dafka programs need."""
