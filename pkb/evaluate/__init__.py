"""From a candidate's source to its verdict, on one node. Knows no Ray and no model."""
