import os

from pyspark.sql import SparkSession, functions

spark = SparkSession.builder.appName("aggregate").getOrCreate()
events = spark.read.parquet(os.environ["SM_CHANNEL_EVENTS"])
customers = spark.read.parquet(os.environ["SM_CHANNEL_CUSTOMERS"])
daily = (
    events.join(customers, "customer")
    .groupBy("day", "segment")
    .agg(functions.sum("amount").alias("amount"), functions.countDistinct("customer").alias("customers"))
)
daily.write.mode("overwrite").parquet(os.path.join(os.environ["SM_OUTPUT_DATA_DIR"], "daily"))
