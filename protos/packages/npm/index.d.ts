import * as grpcModule from "@grpc/grpc-js";

/** Version of the podrace release that serves these contracts. */
export const version: string;
/** Folder of the .proto files. */
export const protos: string;
/** The gRPC library that the clients use. */
export const grpc: typeof grpcModule;
/** The packages as `grpc.loadPackageDefinition` returns them, for instance `podrace.policy.v1.PolicyService`. */
export const podrace: grpcModule.GrpcObject;
/** The Open Inference Protocol. */
export const inference: grpcModule.GrpcObject;

export interface ConnectOptions {
  token?: string;
  credentials?: grpcModule.ChannelCredentials;
  options?: grpcModule.ChannelOptions;
}
export function connect(service: string, address: string, options?: ConnectOptions): grpcModule.Client & Record<string, any>;
export function call(client: grpcModule.Client, method: string, request: object, options?: { seconds?: number }): Promise<any>;
export function decode(message: string, bytes: Buffer | Uint8Array): any;

export interface ErrorDetails {
  reason: string;
  metadata: Record<string, string>;
  violations: { field: string; description: string }[];
  resource: { resource_type: string; resource_name: string } | null;
  retrySeconds: number | null;
}
export function errorDetails(error: unknown): ErrorDetails;
export function descriptorSet(): Buffer;
